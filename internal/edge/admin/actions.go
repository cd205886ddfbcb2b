package admin

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// maxActionBytes bounds the body of one action.
const maxActionBytes = 4 << 10

// act does to a service what the command line's verbs do.
func (s *Server) act(w http.ResponseWriter, r *http.Request) {
	a, err := readAction(w, r)
	if err != nil {
		failError(w, err)
		return
	}
	st, err := s.cfg.Fleet.Get(r.Context(), key(r))
	if err != nil {
		failError(w, err)
		return
	}
	c, err := s.done(r, st.Object, a)
	if err != nil {
		failError(w, err)
		return
	}
	answer(w, wireChanges([]fleet.Change{c})[0])
}

func readAction(w http.ResponseWriter, r *http.Request) (a Action, err error) {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxActionBytes))
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return a, fmt.Errorf("the body is no action: %w", err)
	}
	return a, nil
}

func (s *Server) done(r *http.Request, o fleet.Object, a Action) (fleet.Change, error) {
	if a.Do == "reselect" {
		changes, err := s.cfg.Fleet.Apply(r.Context(), []fleet.Object{o}, fleet.ApplyOptions{Reselect: true})
		if err != nil {
			return fleet.Change{}, err
		}
		return changes[0], nil
	}
	e, err := a.edit(time.Now())
	if err != nil {
		return fleet.Change{}, err
	}
	patch, err := e.Patch(o.Object)
	if err != nil {
		return fleet.Change{}, err
	}
	c, err := s.cfg.Fleet.Edit(r.Context(), o.Key, patch)
	if err == nil && a.Do == "start" {
		err = s.cfg.Fleet.Wake(r.Context(), o.Key, 1)
	}
	return c, err
}

// edit is what the action changes in the manifest.
func (a Action) edit(now time.Time) (e dialect.Edit, err error) {
	stop := a.Do == "stop"
	switch a.Do {
	case "start", "stop":
		e.Stop = &stop
	case "restart":
		e.Restart = now
	case "scale":
		if a.Min == nil && a.Max == nil {
			return e, errors.New("scale: min or max is needed")
		}
		if a.Min != nil && *a.Min < 0 || a.Max != nil && *a.Max < 1 || a.Min != nil && a.Max != nil && *a.Min > *a.Max {
			return e, errors.New("scale: min is from 0 to max, and max from 1 on: stop switches a service off")
		}
		e.Component, e.Min, e.Max = cmp.Or(a.Component, service.RoleEngine), a.Min, a.Max
	default:
		return e, fmt.Errorf("do: %q is none of start, stop, restart, scale, reselect", a.Do)
	}
	return e, nil
}
