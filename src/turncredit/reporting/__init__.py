"""Reports: reads run files and writes statistics, tables, figures and the audit. Imports nothing that trains."""
