"""Training jobs. Each kind of model has a module with the function `fit(frame, spec, context) -> Fitted`."""
