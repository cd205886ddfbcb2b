package clustercli

import "testing"

// TestMigrate: the services of KServe that a cluster has are printed as ours, and the
// cluster is not changed; a file is read though the environment names a cluster.
func TestMigrate(t *testing.T) {
	c, api, ns := newCLI(t, "kserve")
	answering(t, api, ns)
	c.run("migrate", "kserve", "--namespace", ns).fails("there is nothing to migrate")
	c.run("apply", "-f", c.file(kserve)).want(0, "wine created")
	r := c.run("migrate", "kserve", "--namespace", ns).want(0, "kind: ModelService", "namespace: "+ns, "uri: https://models.example/wine.ubj", "# From cluster "+ns+"/wine")
	c.run("validate", "--context", "test", c.file(r.stdout)).want(0, "service "+ns+"/wine is valid")
	c.run("get", "wine", "-o", "yaml").want(0, "kind: InferenceService")
	c.run("migrate", "kserve", c.file(kserve)).want(0, "kind: ModelService")
	c.run("migrate", "kserve", "--context", "test", c.file(kserve)).check(2, "stderr", "", nil)
}
