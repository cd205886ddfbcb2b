package observe

import (
	"log/slog"
	"sync"
	"time"
)

// warnEvery is how long a warning about one subject is not written again.
const warnEvery = 5 * time.Second

// maxWarned is how many subjects are remembered before those of old warnings are
// forgotten.
const maxWarned = 256

// Warnings writes the warnings that every request causes while a replica or an
// endpoint picker is down: one line in warnEvery for each message and subject. The
// next line has the number of lines left out as the attribute "omitted".
type Warnings struct {
	log *slog.Logger

	mu   sync.Mutex
	past map[warning]*repeated
}

// warning is a message about a subject: a replica, or a pool.
type warning struct{ message, subject string }

// repeated is when a warning was last written, and how often it was left out since.
type repeated struct {
	at      time.Time
	omitted int
}

// NewWarnings returns an empty set of warnings that are written to log.
func NewWarnings(log *slog.Logger) *Warnings {
	return &Warnings{log: log, past: map[warning]*repeated{}}
}

// Warn writes message with attrs, unless it wrote that message about subject within
// warnEvery before now.
func (w *Warnings) Warn(now time.Time, message, subject string, attrs ...any) {
	omitted, due := w.due(now, warning{message, subject})
	if !due {
		return
	}
	if omitted > 0 {
		attrs = append(attrs, "omitted", omitted)
	}
	w.log.Warn(message, attrs...)
}

// due reports whether a warning is to be written now, and how often it was left out
// before.
func (w *Warnings) due(now time.Time, x warning) (omitted int, due bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r := w.past[x]; r != nil {
		if now.Sub(r.at) < warnEvery {
			r.omitted++
			return 0, false
		}
		omitted, r.at, r.omitted = r.omitted, now, 0
		return omitted, true
	}
	if len(w.past) >= maxWarned {
		for other, r := range w.past {
			if now.Sub(r.at) >= warnEvery {
				delete(w.past, other)
			}
		}
	}
	w.past[x] = &repeated{at: now}
	return 0, true
}
