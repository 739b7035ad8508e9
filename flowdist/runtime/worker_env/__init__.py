"""What a worker finds when it starts: environment variables, ports, secrets; and the errors that it leaves."""
