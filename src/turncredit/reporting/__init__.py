"""From run files to statistics, tables, figures and the audit. Reads files; imports nothing that trains."""
