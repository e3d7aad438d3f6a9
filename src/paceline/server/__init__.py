"""`paceline serve`: one model behind the interface of OpenAI, over HTTP.

`app.make_app` makes the application, `running.serve` listens. Nothing here decodes: requests become
options of `generate`, and answers of `generate.async_engine.Engine` become responses.
"""
