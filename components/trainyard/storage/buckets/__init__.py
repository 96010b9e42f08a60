"""Object stores behind one interface: Cloud Storage and S3."""
