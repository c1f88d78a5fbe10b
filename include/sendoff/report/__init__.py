"""Reports: one launch as text, HTML, picture, JSON, or exported rows."""
