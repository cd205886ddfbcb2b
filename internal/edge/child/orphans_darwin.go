package child

// BecomeReaper does nothing: launchd is the parent of every orphan.
func BecomeReaper() error { return nil }

// ReapOrphans does nothing: launchd does.
func ReapOrphans() {}

// EndMarked finds nothing: macOS does not show other processes' environments.
func EndMarked(string, string, bool) {}

// Marked finds nothing, as EndMarked.
func Marked(string) map[string][]int { return nil }
