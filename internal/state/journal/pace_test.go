package journal

import (
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/core/service"
)

func TestPace(t *testing.T) {
	k := service.Key{Namespace: "default", Name: "chat"}
	at := time.Date(2026, 11, 26, 14, 0, 0, 0, time.UTC)
	r := NewRequests()
	r.Add(Request{Service: "default/chat"}) // not noted yet: not counted
	r.Pace.Note(k, Load{})
	for _, q := range []Request{
		{Service: "default/chat", Status: 200, Queued: 5 * time.Millisecond, FirstByte: 10 * time.Millisecond, Usage: &openai.Usage{CompletionTokens: 7}},
		{Service: "default/chat", Status: 200, FirstByte: 30 * time.Millisecond, Cut: "reset"},
		{Service: "default/chat", Status: 422},
		{Service: "default/other", Status: 200},
		{Status: 404},
	} {
		r.Add(q)
	}
	if got := r.Pace.Note(k, Load{Queued: 2, Running: 3, Desired: 2, Starting: 1, Ready: 1}); got != (Totals{Requests: 3, Failed: 1, ClientErrors: 1, Tokens: 7}) {
		t.Error(got)
	}
	r.Pace.Note(k, Load{Desired: 2, Ready: 2})
	r.Pace.Step(at)
	want := Point{Time: at, Requests: 3, Failed: 1, ClientErrors: 1, Tokens: 7, WaitMS: 5, FirstByteMS: 20, Load: Load{2, 3, 2, 0, 2}} // the most that waited and ran
	if got := r.Pace.Past(k, at); len(got) != 1 || got[0] != want {
		t.Errorf("%+v", got)
	}
	r.Pace.Step(at.Add(PaceStep)) // nothing happened: no point
	for i := range keptPoints {
		r.Pace.Note(k, Load{Ready: 1})
		r.Pace.Step(at.Add(time.Duration(i+2) * PaceStep))
	}
	past := r.Pace.Past(k, at.Add((keptPoints+1)*PaceStep))
	if len(past) != keptPoints || past[0].Requests != 0 {
		t.Error(len(past), past[0])
	}
	if got := r.Pace.Past(k, at.Add(3*time.Hour)); len(got) != 0 {
		t.Error("points of more than an hour ago:", len(got))
	}
	r.Pace.Forget(k)
	if got := r.Pace.Past(k, at); len(got) != 0 {
		t.Error(got)
	}
}
