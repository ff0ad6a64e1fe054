"""Images from a source, decoded and resized once, stored under an address made from their content."""
