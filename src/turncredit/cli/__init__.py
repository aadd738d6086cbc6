"""The ``turncredit`` command."""
