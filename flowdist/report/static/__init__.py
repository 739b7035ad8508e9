"""What the role graph alone says: the plan, its drawing, and what a failure would restart. Independent of control."""
