"""The site of kind `cloud`: it rents machines at a cloud provider, prepares them over SSH, and runs pods on
them through the server of a farm on each machine."""
