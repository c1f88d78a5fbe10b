"""What all pages share: who may see what, the time zone, forms, templates and errors."""
