"""Ray Train shells: launch a run, be one of its workers; the only place in trainer/ with ray."""
