"""Rows of tables: read in batches from CSV and Parquet files, and judged by column or one by one."""
