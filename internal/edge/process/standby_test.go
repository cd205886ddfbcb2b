package process

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

// levels are those that can be tested here.
func levels(t *testing.T) []int {
	if _, _, why := swap(); why != "" {
		t.Logf("suspension is not tested: %s", why)
		return []int{1}
	}
	return []int{1, service.LevelSuspended}
}

// TestSleeperIsNotProbed: a process that answers no probes while it sleeps lives on,
// and is ready once it is woken.
func TestSleeperIsNotProbed(t *testing.T) {
	for _, level := range levels(t) {
		t.Run(service.AsleepAt(level), func(t *testing.T) {
			s := platformtest.On(t, open(t, Config{}))
			k := platformtest.Key("probed")
			alive := httpProbe("/livez")
			alive.PeriodSeconds, alive.FailureThreshold = 1, 1
			r := revision(k, platformtest.Server{Sleeps: true, Suspends: true, Liveness: alive, EatMB: 32})
			s.MustApply(r)
			s.MustScale(k, 1)
			first := s.AwaitReady(k, 1)[0]
			s.MustSleep(k, level)
			// Longer than the probe is patient: nothing may happen.
			for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				s.AwaitAsleep(k, level)
			}
			if level == service.LevelSuspended {
				wantStopped(t, first.PID)
			}
			s.MustScale(k, 1)
			if woken := s.AwaitReady(k, 1)[0]; woken.PID != first.PID || woken.Woke == nil || woken.Woke.Level != level {
				t.Errorf("woken: %+v, was %+v", woken, first)
			}
			s.MustSleep(k, level)
			s.MustScale(k, 0)
			s.AwaitNone(k)
			awaitEnd(t, first.PID)
		})
	}
}

// TestSleeperIsAdopted: a process that sleeps stays so under the next owner, which
// wakes it; one that somebody kills meanwhile is not missed.
func TestSleeperIsAdopted(t *testing.T) {
	for _, level := range levels(t) {
		t.Run(service.AsleepAt(level), func(t *testing.T) {
			dir, k := t.TempDir(), platformtest.Key("adopted")
			r := revision(k, platformtest.Server{Sleeps: true, Suspends: true, EatMB: 32})
			before := open(t, Config{Dir: dir})
			s := platformtest.On(t, before)
			s.MustApply(r)
			s.MustScale(k, 1)
			first := s.AwaitReady(k, 1)[0]
			s.MustSleep(k, level)
			if err := before.Close(t.Context(), true); err != nil {
				t.Fatal(err)
			}
			s = platformtest.On(t, open(t, Config{Dir: dir}))
			s.MustApply(r)
			if found := s.AwaitAsleep(k, level); found.PID != first.PID {
				t.Fatalf("found %+v, was %+v", found, first)
			}
			s.MustScale(k, 1)
			if woken := s.AwaitReady(k, 1)[0]; woken.PID != first.PID {
				t.Errorf("woken: %+v, was %+v", woken, first)
			}
			s.MustSleep(k, level)
			if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			s.AwaitNone(k)
		})
	}
}

func wantStopped(t *testing.T, pid int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil || !strings.Contains(string(status), "T (stopped)") {
		t.Errorf("process %d is not stopped: %s %v", pid, status, err)
	}
	_, swapped, _ := strings.Cut(string(status), "VmSwap:")
	kib := 0
	if _, err := fmt.Sscan(swapped, &kib); err != nil || kib < 16<<10 {
		t.Errorf("%d KiB of its memory are in swap: %v", kib, err)
	}
}
