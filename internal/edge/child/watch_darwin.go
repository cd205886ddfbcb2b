package child

import (
	"os"
	"time"
)

// watcher waits for the end of one process by looking it up.
type watcher struct{ id Identity }

// pollInterval is how often an adopted process is looked up.
const pollInterval = 50 * time.Millisecond

func watch(id Identity) (watcher, error) {
	if id.PID <= 1 || id.PID == os.Getpid() {
		return watcher{}, ErrGone
	}
	return watcher{id}, verify(id)
}

func (w watcher) wait() {
	for verify(w.id) == nil {
		time.Sleep(pollInterval)
	}
}

// awaitChild is false at once: the caller's wait blocks.
func awaitChild(int) bool { return false }
