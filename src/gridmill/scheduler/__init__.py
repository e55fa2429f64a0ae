"""Pure functions: Snapshot -> Plan. They know only the model."""
