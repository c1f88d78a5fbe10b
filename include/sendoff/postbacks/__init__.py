"""Post-backs: receive, store, aggregate, and reconcile them."""
