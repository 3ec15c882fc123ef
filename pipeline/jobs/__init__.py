"""Ray Data shells, one a stage: name inputs and resources, call one core function a unit."""
