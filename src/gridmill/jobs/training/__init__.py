"""Training jobs: one module per kind of model, each with `fit(frame, spec, context) -> Fitted`."""
