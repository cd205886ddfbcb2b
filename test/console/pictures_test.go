package console

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// TestPictures takes the pictures of the documentation, after some minutes of
// requests so that the charts have something to show.
func TestPictures(t *testing.T) {
	if os.Getenv("ROUNDHOUSE_PICTURES") == "" {
		t.Skip("takes minutes: `make console-pictures` runs it")
	}
	u := start(t, quickstart)
	u.call(t, "POST", "/api/v1/apply", manifest("summaries", "format: {name: simulator}"), nil)
	u.call(t, "POST", "/api/v1/apply", manifest("translate", "format: {name: simulator}"), nil)
	u.call(t, "POST", "/api/v1/apply", manifest("fraud", "uri: file:///models/fraud.ubj, format: {name: xgboost}"), nil)
	end := time.Now().Add(8 * time.Minute)
	var load sync.WaitGroup
	for n := range 16 {
		load.Go(func() {
			time.Sleep(time.Duration(n) * 20 * time.Second)
			for i := 0; time.Now().Before(end); i++ {
				model := []string{"chat", "chat", "summaries", "iris"}[i%4]
				if model == "iris" {
					u.ask(t, "/v2/models/iris/infer", `{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}`)
					continue
				}
				u.ask(t, "/v1/chat/completions", fmt.Sprintf(`{"model":%q,"stream":true,"stream_options":{"include_usage":true},"max_tokens":%d,"messages":[{"role":"user","content":"%d %d"}]}`, model, 40+n, n, i))
			}
		})
	}
	time.Sleep(6*time.Minute + 30*time.Second)
	b := signedIn(t, u, 1280, 800, false)
	b.until(`[...document.querySelectorAll(".figures dd")].filter(e => parseFloat(e.innerText.replace(",", "")) > 15).length >= 3`)
	b.picture("console-overview")
	dark := signedIn(t, u, 1280, 800, true)
	dark.visit("#/services/default/chat")
	dark.sees("autoscaler")
	dark.until(`[...document.querySelectorAll(".figures dd")].filter(e => parseFloat(e.innerText.replace(",", "")) > 10).length >= 3`)
	dark.picture("console-service")
	b.visit("#/playground/default/chat")
	b.sees("Compare with")
	b.choose("Compare with", "default/summaries")
	b.do(chromedp.SendKeys(`textarea[name=message]`, "What is a roundhouse?", chromedp.ByQuery), chromedp.Evaluate(`document.activeElement.blur()`, nil))
	b.press("Send")
	b.until(`document.body.innerText.split("tokens/s").length > 2`)
	b.picture("console-playground")
	load.Wait()
}
