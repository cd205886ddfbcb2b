package dispatch

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/breaker"
	"roundhouse.dev/roundhouse/internal/decide/route"
)

func TestConfigValidate(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	_, err := New(Config{Breaker: breaker.Config{LostRest: 2, MaxLostRest: 1}}, &recorder{}, nil, nil)
	for _, field := range []string{"MaxQueue", "MaxQueueBytes", "MaxWait", "MaxTries", "ReportEvery", "WakeTimeout", "WakeRetry", "MaxLostRest"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v lacks %s", err, field)
		}
	}
}

func TestStates(t *testing.T) {
	router := inPhase("r", replica.Starting, "loading weights")
	router.Role = service.RoleRouter
	behind := pool1(0, append(ready("e"), router)...)
	behind.Entry = service.RoleRouter
	troubled := pool1(0, inPhase("a", replica.Starting, ""))
	troubled.Cause = Cause{Reason: "ImagePullBackOff", Message: "no such image"}
	cause := pool1(0)
	cause.Cause = Cause{Reason: "Stopped", Message: "its owner switched it off", Permanent: true}
	unseen := pool1(0)
	unseen.Starting = "fetching the model: 1 GB of 4 GB"
	for _, c := range []struct {
		name    string
		pool    PoolConfig
		state   State
		message string
		answers bool
	}{
		{"ready", pool1(0, append(ready("a"), inPhase("b", replica.Failed, "x"))...), StateReady, "", true},
		{"starting beside failed", pool1(0, inPhase("a", replica.Failed, "x"), inPhase("b", replica.Fetching, "1 GB of 2 GB")), StateLoading, "Fetching: 1 GB of 2 GB", false},
		{"failed", pool1(0, inPhase("a", replica.Failed, "exit code 1")), StateFailed, "Failed: exit code 1", false},
		{"draining", pool1(0, inPhase("a", replica.Draining, "")), StateAsleep, "asleep: the next request starts it", true},
		{"starting, and why it takes long", troubled, StateLoading, "Starting; ImagePullBackOff: no such image", false},
		{"a pod that has no address yet", unseen, StateLoading, "fetching the model: 1 GB of 4 GB", false},
		{"permanent", cause, StateFailed, "Stopped: its owner switched it off", false},
		{"the entry role counts", behind, StateLoading, "Starting: loading weights", false},
	} {
		d, _ := start(t, nil)
		d.SetPool(c.pool)
		s, ok := d.Status(routing.Service(service.ParseKey("iris")))
		if !ok || s.State != c.state || s.Message != c.message || s.Answers() != c.answers || s.Name != "iris" {
			t.Errorf("%s: %+v", c.name, s)
		}
	}
	if r := EntryRole(service.Components{Engine: &service.Component{}, Router: &service.Component{}}); r != service.RoleRouter {
		t.Errorf("entry role %s", r)
	}
}

func TestSetPoolsReplacesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		other := PoolConfig{Key: service.Key{Namespace: "team", Name: "iris"}, Host: "iris.example"}
		d.SetPools([]PoolConfig{pool1(0), other})
		var ambiguous *route.AmbiguousError
		if _, err := d.Admit(t.Context(), Request{Model: "iris"}); !errors.As(err, &ambiguous) {
			t.Fatalf("got %v", err)
		}
		if k, err := d.Key(Request{Host: "iris.example"}); err != nil || k != other.Key {
			t.Errorf("by host: %v %v", k, err)
		}
		d.SetPools([]PoolConfig{pool1(0)})
		waiting := admit(t.Context(), d)
		synctest.Wait()
		d.SetPools([]PoolConfig{pool1(0, ready("a")...)}) // the same pool, kept with its queue
		(<-waiting).g.Done(Outcome{})
		balance(t, d, 0, 0, 1)

		other.Host = "late.example"
		d.SetPool(other)
		if k, err := d.Key(Request{Host: "late.example"}); err != nil || k != other.Key {
			t.Errorf("by its new host: %v %v", k, err)
		}
		d.SetPools(nil)
		var gone *route.NotFoundError
		if _, err := d.Admit(t.Context(), Request{Model: "iris"}); !errors.As(err, &gone) {
			t.Errorf("got %v", err)
		}
		d.Remove(routing.Service(iris))
		if n := len(d.Pools()); n != 0 {
			t.Errorf("%d pools", n)
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPool(pool1(1, ready("a")...))
		g := mustAdmit(t, d)
		waiting := admit(t.Context(), d)
		synctest.Wait()
		d.Close()
		for _, err := range []error{(<-waiting).err, (<-admit(t.Context(), d)).err} {
			if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "shutting down") {
				t.Errorf("got %v", err)
			}
		}
		d.SetPool(pool1(0, ready("a", "b")...))
		d.SetPools(nil)
		d.Remove(routing.Service(iris))
		g.Done(Outcome{})
		balance(t, d, 0, 0, 2)
	})
}
