package openai

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestAppendEntries: those that llm-d's sidecar has encoded count, in its order, and
// nothing else.
func TestAppendEntries(t *testing.T) {
	said := func(parts string) string { return `[{"role":"user","content":[` + parts + `]}]` }
	image := func(url string) string {
		return `{"type":"image_url","image_url":{"url":"` + url + `","detail":"low"}}`
	}
	for name, c := range map[string]struct {
		messages string
		want     int
	}{
		"nothing":                 {"", 0},
		"no list":                 {`{"content":[` + image("http://a/b") + `]}`, 0},
		"text":                    {`[{"role":"user","content":"type image_url"}]`, 0},
		"parts of text":           {said(`{"type":"text","text":"{\"type\":\"image_url\"}"}`), 0},
		"of each type":            {said(image("data:image/png;base64,AA") + `,{"audio_url":{"url":"http://a"},"type":"audio_url"},{"type":"video_url","video_url":{"url":"http://v"}},{"type":"input_audio","input_audio":{"data":"AA","format":"wav"}}`), 4},
		"in several messages":     {`[{"content":[` + image("http://a") + `]},{"role":"assistant","content":null},{"content":[` + image("http://b") + `]}]`, 2},
		"one URL twice":           {said(image("http://a") + "," + image("http://b") + "," + image("http://a")), 2},
		"one recording twice":     {said(`{"type":"input_audio","input_audio":{"data":"AA"}},{"type":"input_audio","input_audio":{"data":"AA"}}`), 2},
		"a URL as it is":          {said(`{"type":"image_url","image_url":"http://a"}`), 1},
		"an escaped type":         {said(`{"type":"image\u005furl","image_url":{"url":"http://a"}}`), 1},
		"a type without payload":  {said(`{"type":"image_url"}`), 1},
		"a payload without type":  {said(`{"image_url":{"url":"http://a"}},{"type":7},{"type":null}`), 0},
		"parts that are no parts": {said(`7,"image_url",[` + image("http://a") + `]`), 0},
		"Anthropic's":             {said(`{"type":"image","source":{"type":"url","url":"http://a"}}`), 0},
		"10,000 pictures":         {said(strings.Repeat(image("http://a")+",", 9_999) + image("http://b")), 2},
	} {
		if got := AppendEntries(nil, []byte(c.messages), 64); len(got) != c.want {
			t.Errorf("%s: %d entries, want %d", name, len(got), c.want)
		}
	}
	a, b := AppendEntries(nil, []byte(said(image("http://a")+","+image("http://b"))), 64), AppendEntries(nil, []byte(said(image("http://b"))), 64)
	if len(a) != 2 || !slices.Equal(a[1:], b) {
		t.Errorf("one picture has the hashes %x and %x", a[1:], b)
	}
	var many strings.Builder
	for n := range 10_000 {
		fmt.Fprintf(&many, "%s,", image(fmt.Sprint("http://a/", n)))
	}
	if got := AppendEntries([]uint64{1}, []byte(said(strings.TrimSuffix(many.String(), ","))), 64); len(got) != 65 {
		t.Errorf("%d entries of 10,000, want 64", len(got)-1)
	}
}
