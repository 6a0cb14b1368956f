"""How fast the parts are, each beside a ceiling measured in the same run."""
