"""The code of each kind of job. Each kind of job has a module or a package of its own. The modules of this
package use the context of a job (JobContext) and never call the control node."""
