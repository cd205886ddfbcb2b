package fleet_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestRefusedIsTriedLessAndLess: what the platform refuses is tried again at a
// pace that falls, also while something of the service changes all the time,
// and at once when it is edited.
func TestRefusedIsTriedLessAndLess(t *testing.T) {
	for _, changing := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.platform.fail = errors.New("spec.template: Invalid value")
			r.apply(serviceYAML("a", one))
			ctx, end := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				r.Run(ctx, 1)
			}()
			during := func(d time.Duration) int {
				synctest.Wait()
				r.took()
				for left := d; left > 0; left -= time.Second {
					if changing {
						r.Demanded(key("a"))
					}
					time.Sleep(time.Second)
				}
				synctest.Wait()
				return len(r.took())
			}
			first, later := during(time.Minute), during(time.Hour)
			least, most := 3, 16 // of an hour, every five minutes in the end
			if changing {
				most = 225 // every sixteen seconds
			}
			if first < least || later < 10 || later > most {
				t.Errorf("changing %v: tried %d times in the first minute, %d in the hour after", changing, first, later)
			}
			r.platform.mu.Lock()
			r.platform.fail = nil
			r.platform.mu.Unlock()
			r.apply(serviceYAML("a", "engine: {env: [{name: A, value: c}]}, "+one))
			synctest.Wait()
			if v := r.platform.revisions[key("a")]; v.Hash == "" {
				t.Error("edited, it is not tried at once")
			}
			end()
			<-done
		})
	}
}
