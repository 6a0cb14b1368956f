"""What people look at while a run goes and when it is over."""
