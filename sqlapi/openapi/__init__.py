"""
The description of the HTTP API in OpenAPI 3.1, as `GET /v1/openapi.json` sends it and `docs/reference/` has it.

`document` builds it from the routes, from what describes each route (`operations`, `schemas`), and from the error table
(`error_codes`). Whatever has no description there fails a test.
"""
