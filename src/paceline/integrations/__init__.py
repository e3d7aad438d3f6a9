"""Other libraries' doors."""
