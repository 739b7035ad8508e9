"""Options, output and look-ups that several verbs share. This package imports no verb."""
