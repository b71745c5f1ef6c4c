"""The images of towline's roles, built without Docker: `python -m images` from the top of the repository.

Standard library only, so that the first stage of a Dockerfile can run it too.
"""
