"""One request from validation to its last token, whichever way it came in: the pipeline behind gRPC and HTTP."""
