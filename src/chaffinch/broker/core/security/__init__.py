"""Security: logins, SASL mechanisms, SCRAM credentials, security options."""
