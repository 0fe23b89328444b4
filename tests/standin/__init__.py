"""A stand-in for Azure's services on this machine, over TLS with a certificate of its own.

It answers what the real services' documents say and what their SDKs were seen to send, checks what it is asked (token,
api-version, body), and keeps every request. It proves what is sent and that the answers are understood, not what Azure
itself would say. Each service is one file here; a request that no service knows is a surprise and fails the test.
"""
