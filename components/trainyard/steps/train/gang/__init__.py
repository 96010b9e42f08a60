"""Several workers that train one model: they meet, are supervised, and start again when one is lost."""
