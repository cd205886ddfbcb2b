"""What runtimes import from MLServer's REST server."""
