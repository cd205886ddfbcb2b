package console

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
)

const quickstart = "../../examples/quickstart"

// signedIn is a browser that followed the link of an up.
func signedIn(t *testing.T, u *up, width, height int64, dark bool) *tab {
	t.Helper()
	b := open(t, width, height, dark)
	b.do(chromedp.Navigate(u.link))
	b.sees("Overview", "Services")
	return b
}

func busy(t *testing.T, u *up) {
	t.Helper()
	for i := range 30 {
		if got := u.ask(t, "/v1/chat/completions", fmt.Sprintf(`{"model":"chat","max_tokens":%d,"messages":[{"role":"user","content":"hello %d"}]}`, 10+i, i)); got != 200 {
			t.Fatal(got)
		}
	}
	u.ask(t, "/v2/models/iris/infer", `{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}`)
	u.ask(t, "/v2/models/nowhere/infer", `{}`)
}

// TestPages visits each page, light, dark and narrow.
func TestPages(t *testing.T) {
	u := start(t, quickstart)
	busy(t, u)
	looks := []struct {
		name          string
		width, height int64
		dark          bool
	}{{"light", 1280, 860, false}, {"dark", 1280, 860, true}, {"narrow", 360, 780, false}}
	for _, look := range looks {
		t.Run(look.name, func(t *testing.T) {
			u.link = u.newLink(t)
			b := signedIn(t, u, look.width, look.height, look.dark)
			for _, p := range []struct{ name, hash, shows string }{
				{"overview", "#/", "Memory"},
				{"service", "#/services/default/chat", "What it runs on"},
				{"requests", "#/requests", "iris"},
				{"events", "#/events", "Runtime selected"},
				{"logs", "#/logs/default/chat", "Live"},
				{"why", "#/why/default/iris", "Runs on"},
				{"playground", "#/playground/default/iris", "Input of iris"},
				{"models", "#/models", "iris.ubj"},
				{"routes", "#/routes", "Pools"},
				{"apply", "#/apply", "To be created"},
				{"keys", "#/keys", "There is no key."},
			} {
				b.visit(p.hash)
				b.sees(p.shows)
				b.picture(p.name + "-" + look.name)
			}
		})
	}
}

func (u *up) newLink(t *testing.T) string {
	var out struct{ Path string }
	u.call(t, "POST", "/api/v1/console", nil, &out)
	return u.admin + out.Path
}
