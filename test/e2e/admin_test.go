package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAdminGuard: nobody but the owner's clients gets in.
func TestAdminGuard(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	api := n.admin + "/api/v1/services"
	token := "Bearer " + n.token()
	for name, c := range map[string]struct {
		header []string
		status int
		want   string
	}{
		"the owner":      {[]string{"Authorization", token}, 200, `\[`},
		"no token":       {nil, 401, "admin-token"},
		"a wrong token":  {[]string{"Authorization", token + "x"}, 401, "admin-token"},
		"foreign Host":   {[]string{"Authorization", token, "Host", "rebound.example:8090"}, 403, `Host \\"rebound.example:8090\\"`},
		"foreign Origin": {[]string{"Authorization", token, "Origin", "http://evil.example"}, 403, `Origin \\"http://evil.example\\"`},
		"null Origin":    {[]string{"Authorization", token, "Origin", "null"}, 403, "Origin"},
		"own Origin":     {[]string{"Authorization", token, "Origin", n.admin}, 200, `\[`},
	} {
		t.Run(name, func(t *testing.T) {
			a := n.on(t).get(api, c.header...)
			if a.status != c.status {
				t.Errorf("want %d, got %s", c.status, a)
			}
			matches(t, a.body, c.want)
		})
	}
	for path, mode := range map[string]os.FileMode{"": 0o700, "admin-token": 0o600} {
		if info, err := os.Stat(filepath.Join(n.dir, path)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%q: want mode %o, got %v (%v)", path, mode, info.Mode(), err)
		}
	}
	other := *n
	other.dir = t.TempDir() // where no token is
	fails(t, other.run("get"), 1, "admin-token")
	if a := n.send("POST", n.admin+"/api/v1/apply", `{"files":[{"name":"`+strings.Repeat("x", 17<<20)+`"}]}`, "Authorization", token); a.status != 413 {
		t.Errorf("an apply over the limit: %d", a.status)
	}
}
