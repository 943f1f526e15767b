"""The durable post between AI agents on several machines."""

__version__ = "0.1.0"
