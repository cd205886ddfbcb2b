package containers

// outOfMemory is what the engine says alone.
func outOfMemory(string) bool { return false }
