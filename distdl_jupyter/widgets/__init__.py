"""The widgets: the live panel of a job, the launch form, the Azure sign-in, and the output of cells on ranks."""
