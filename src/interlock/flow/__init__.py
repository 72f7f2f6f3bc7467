"""What happens, in order: written once as `async def` over the port, stepped by threads and awaited by tasks."""
