package picker

import "testing"

func mustPolicy(t testing.TB, preset string) *Policy {
	t.Helper()
	c, err := Preset(preset)
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestEveryPresetPicks(t *testing.T) {
	for _, name := range Presets() {
		p := mustPolicy(t, name)
		var out Choice
		p.Pick(&Input{}, nil, &out)
		if out.Outcome != None || out.Slot != -1 {
			t.Errorf("%s: picks from nothing: %+v", name, out)
		}
		p.Pick(&Input{Endpoints: []Endpoint{{}, {Name: "b", Open: true}}}, nil, &out)
		if out.Outcome != Picked || out.Slot != 1 {
			t.Errorf("%s: %s", name, out.Reason())
		}
	}
}
