"""Jobs as OpenTelemetry spans and metrics, for those who ask for it. Off by default; it knows no secret and no code."""
