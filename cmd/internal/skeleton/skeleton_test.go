package skeleton

import (
	"bytes"
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// pythonWith is a Python that has modules; the test is skipped where there is
// none.
func pythonWith(t *testing.T, modules ...string) string {
	t.Helper()
	python := cmp.Or(os.Getenv("ROUNDHOUSE_PYTHON"), os.Getenv("ROUNDHOUSE_PEERS_PYTHON"), "python3")
	if out, err := exec.Command(python, "-c", "import "+strings.Join(modules, ", ")).CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		t.Skipf("%s: %v: %s (ROUNDHOUSE_PYTHON names another)", python, err, lines[len(lines)-1])
	}
	return python
}

func write(template, folder string) (string, error) {
	var out bytes.Buffer
	err := Write(&out, template, folder)
	return out.String(), err
}

// TestSkeletonsPass runs the tests of every skeleton, with the light mlserver
// package unless the real one is there, and breaks each to see that they can
// fail.
func TestSkeletonsPass(t *testing.T) {
	needs := map[string][]string{"custom": {"numpy", "pydantic", "pytest"}, "sklearn": {"numpy", "pydantic", "pytest", "sklearn", "joblib"}}
	broken := map[string][2]string{"custom": {"self._bias)))", "self._bias + 1)))"}, "sklearn": {"np.argmax", "np.argmin"}}
	packages, err := filepath.Abs(filepath.Join("..", "..", "..", "python"))
	if err != nil {
		t.Fatal(err)
	}
	for template := range Templates {
		t.Run(template, func(t *testing.T) {
			python := pythonWith(t, needs[template]...)
			folder := filepath.Join(t.TempDir(), "My model")
			said, err := write(template, folder)
			if err != nil || !strings.Contains(said, "the model My-model") || !strings.Contains(said, "-t my-model") {
				t.Fatalf("%s: %v", said, err)
			}
			pytest := func() (string, error) {
				cmd := exec.Command(python, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider")
				cmd.Dir = folder
				cmd.Env = append(os.Environ(), "PYTHONPATH="+packages)
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			if out, err := pytest(); err != nil || !strings.Contains(out, "2 passed") {
				t.Fatalf("%v\n%s", err, out)
			}
			file := filepath.Join(folder, "models.py")
			code, err := os.ReadFile(file)
			if err != nil || !strings.Contains(string(code), broken[template][0]) {
				t.Fatal("the code to break is not there", err)
			}
			code = bytes.Replace(code, []byte(broken[template][0]), []byte(broken[template][1]), 1)
			if err := os.WriteFile(file, code, 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := pytest(); err == nil || !strings.Contains(out, "1 failed, 1 passed") {
				t.Errorf("broken code: %v\n%s", err, out)
			}
		})
	}
}

func TestNamesAreFilledIn(t *testing.T) {
	for template := range Templates {
		folder := filepath.Join(t.TempDir(), "flowers")
		if _, err := write(template, folder); err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(folder)
		if err != nil || len(files) < 6 {
			t.Fatal(files, err)
		}
		for _, f := range files {
			text, err := os.ReadFile(filepath.Join(folder, f.Name()))
			if err != nil || bytes.Contains(text, []byte("@NAME@")) || bytes.Contains(text, []byte("@IMAGE@")) {
				t.Errorf("%s: %v: a name is missing", f.Name(), err)
			}
		}
	}
}

func TestWriteErrors(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ template, folder, says string }{
		{"custom", full, "is not empty, it has mine"},
		{"custom", filepath.Join(full, "mine", "x"), "not a directory"},
		{"https://example.com/template", "x", "want custom or sklearn"},
		{"custom", filepath.Join(full, "…"), "letters or digits"},
	} {
		if _, err := write(test.template, test.folder); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s in %s: error %v does not say %q", test.template, test.folder, err, test.says)
		}
	}
}
