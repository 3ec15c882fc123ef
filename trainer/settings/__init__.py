"""The tables of a run's TOML that are the trainer's, one a module; trainer/config.py joins them."""
