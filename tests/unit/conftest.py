"""Property tests judge values, never the machine's speed: other tests, and whatever else it does, run beside them."""

from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
