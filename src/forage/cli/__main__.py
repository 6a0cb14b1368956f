"""`python -m forage.cli` is the `forage` command."""

from forage.cli.main import main

raise SystemExit(main())
